"""What a program wants kept in a checkpoint besides the model: any Python values, in the checkpoint's JSON."""

import base64
import io

import torch


def encode(values):
    """Tensors go to the CPU."""
    buffer = io.BytesIO()
    torch.save(values, buffer)
    return base64.b64encode(buffer.getvalue()).decode()


def decode(text):
    """Runs code that the file's author put into it, as torch.load(weights_only=False) does."""
    return torch.load(io.BytesIO(base64.b64decode(text)), map_location="cpu", weights_only=False)


def as_tensor(values):
    buffer = io.BytesIO()
    torch.save(values, buffer)
    return torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)


def from_tensor(tensor):
    return torch.load(io.BytesIO(tensor.numpy().tobytes()), map_location="cpu", weights_only=False)
