"""Calibrate a PyTorch model: collect logits, fit a map locally, and export both to one ONNX file.

pip install 'calibrd[train,onnx]' onnxscript scikit-learn
CALIBRD_URL=http://127.0.0.1:8000 python examples/torch_onnx.py
"""

import logging

import numpy as np
import onnxruntime
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, random_split

import calibrd
from calibrd.torch import CalibratedModule, collect_logits, fingerprint

logging.getLogger("torch.onnx").setLevel(logging.ERROR)
torch.manual_seed(0)
X, y = load_digits(return_X_y=True)
# a tenth of the labels are wrong, as in real life: the network memorises most of them
noisy = np.where(np.random.default_rng(0).random(len(y)) < 0.1, (y + 3) % 10, y)
rows = TensorDataset(torch.tensor(X / 16, dtype=torch.float32), torch.tensor(noisy))
train, cal, test = random_split(rows, [797, 500, 500])

model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
optimiser = torch.optim.Adam(model.parameters(), lr=5e-3)
for _ in range(60):
    for inputs, labels in DataLoader(train, batch_size=64, shuffle=True):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimiser.step()

# fit locally and send only the map; the fingerprint ties it to these weights
logits, labels = collect_logits(model, DataLoader(cal, batch_size=64))
fitted = calibrd.fit_local(logits, labels, method="smart")
print(fitted.report.summary())  # the verdict, with intervals
with calibrd.Client() as client:
    version = client.register("digits-net", *fitted, model=fingerprint(model))
print(f"\nregistered as {version.reference} for the model {version.model[:19]}...")

# model and map as one module, with torch's own state_dict, devices and export
calibrated = CalibratedModule(model, fitted.map).eval()
images = torch.stack([one for one, _ in test])
batch = torch.export.Dim("batch")
torch.onnx.export(
    calibrated, (images[:2],), "digits.onnx", dynamic_shapes=(({0: batch},),), verbose=False
)

session = onnxruntime.InferenceSession("digits.onnx")
(outputs,) = session.run(None, {session.get_inputs()[0].name: images.numpy()})
with torch.inference_mode():
    difference = np.abs(outputs - calibrated(images).numpy()).max()
print(f"digits.onnx gives the same calibrated probabilities as torch, within {difference:.0e}")
