"""Train a small network twice: with cross-entropy and a monitor, and with AdaFocal.

Run it with `make serve` running, or with CALIBRD_URL set.
"""

import torch
from torch import nn

import calibrd
from calibrd.training import AdaFocal, Monitor

EPOCHS, CLASSES = 12, 5
generator = torch.Generator().manual_seed(0)
centres = torch.randn(CLASSES, 20, generator=generator)
labels = torch.randint(CLASSES, (4500,), generator=generator)
inputs = centres[labels] + 2.2 * torch.randn(4500, 20, generator=generator)
train, held_out = slice(0, 1500), slice(1500, None)


def network() -> nn.Module:
    """Return a small network with fixed initial weights."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(20, 128), nn.ReLU(), nn.Linear(128, CLASSES))


def train_model(run: AdaFocal | Monitor, loss: nn.Module) -> float:
    """Train with a loss, stepping after each epoch; return the last calibration error."""
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    for _ in range(EPOCHS):
        for batch in torch.randperm(1500, generator=generator).split(100):
            optimizer.zero_grad()
            loss(model(inputs[train][batch]), labels[train][batch]).backward()
            optimizer.step()
        with torch.no_grad():
            run.observe(model(inputs[held_out]), labels[held_out])
        summary = run.step()
    print(f"{run.run}: ECE {summary.ece:.3f}, accuracy {summary.accuracy:.3f}")
    return summary.ece


client = calibrd.Client()
with Monitor(client, run="cross-entropy", fresh=True) as monitor:
    before = train_model(monitor, nn.CrossEntropyLoss())
with AdaFocal(client, run="adafocal", rate=5.0, fresh=True) as adafocal:
    after = train_model(adafocal, adafocal.loss)

print(f"AdaFocal's calibration error is {after / before:.2f} times that of cross-entropy")
print("gammas by confidence:", adafocal.state.gammas.round(1).tolist())
steps = client.run_history("adafocal")
print(f"the service has {len(steps)} steps, all verified: {all(one.verified for one in steps)}")
