"""A PyTorch loop with the package's calls: trains until should_stop(), or to the step in argv."""
import os
import sys

import torch

import trainit

steps = int(sys.argv[1])
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
start = 0
if trainit.resume_from():
    saved = torch.load(trainit.resume_from(), weights_only=True)
    model.load_state_dict(saved["model"])
    start = saved["step"]
    assert start == trainit.resume_step()
trainit.should_stop()
print("start", start, flush=True)


def save(n):
    path = os.path.join(trainit.checkpoint_dir(), "ckpt-%08d.pt" % n)
    torch.save({"model": model.state_dict(), "step": n}, path + ".tmp")
    os.replace(path + ".tmp", path)


n = start
while n < steps and not trainit.should_stop():
    n += 1
    inputs = torch.randn(8, 4)
    loss = ((model(inputs) - inputs.sum(1, keepdim=True)) ** 2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    trainit.step(n, loss=loss, rate=torch.tensor([0.01]))
trainit.report("final_loss", loss, step=n)
save(n)
print("end", n, flush=True)
