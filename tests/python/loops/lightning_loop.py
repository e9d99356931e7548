"""Lightning with the callback of the package."""
import atexit
import sys

import lightning
import torch

import trainit
from trainit.lightning import TrainitCallback


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, _):
        loss = ((self.layer(batch[0]) - batch[0].sum(1, keepdim=True)) ** 2).mean()
        self.log("loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(64, 4)), batch_size=8)
trainer = lightning.Trainer(max_steps=int(sys.argv[1]), max_epochs=-1, accelerator="cpu", logger=False, enable_progress_bar=False,
                            enable_checkpointing=False, enable_model_summary=False, callbacks=[TrainitCallback()])
# Lightning ends Python after the batch in which a SIGTERM arrived.
atexit.register(lambda: print("end", trainer.global_step, flush=True))
print("start", trainit.resume_step() or 0, flush=True)
trainer.fit(Model(), data, ckpt_path=trainit.resume_from())
trainit.report("final_loss", trainer.callback_metrics["loss"], step=trainer.global_step)
trainer.save_checkpoint(f"{trainit.checkpoint_dir('.')}/step={trainer.global_step}.ckpt")
