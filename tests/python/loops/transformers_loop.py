"""Transformers with the callback of the package, on a model made here."""
import sys

import torch
import transformers

import trainit
from trainit.transformers import TrainitCallback


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 4096

    def __getitem__(self, at):
        words = torch.arange(8) * (at + 1) % 50
        return {"input_ids": words, "labels": words}


config = transformers.GPT2Config(vocab_size=50, n_positions=8, n_embd=8, n_layer=1, n_head=1)
model = transformers.GPT2LMHeadModel(config)
arguments = transformers.TrainingArguments(
    output_dir=trainit.checkpoint_dir("out"), max_steps=int(sys.argv[1]), per_device_train_batch_size=2, logging_steps=1,
    save_strategy="no", report_to=[], disable_tqdm=True, use_cpu=True)
trainer = transformers.Trainer(model=model, args=arguments, train_dataset=Data(), callbacks=[TrainitCallback()])
print("start", trainit.resume_step() or 0, flush=True)
trainer.train(resume_from_checkpoint=trainit.resume_from())
print("end", trainer.state.global_step, flush=True)
trainit.report("final_loss", trainer.state.log_history[-1]["train_loss"], step=trainer.state.global_step)
