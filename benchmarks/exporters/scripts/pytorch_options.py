"""Defines how the scripts call PyTorch's two exporters: with a dynamic batch size, as PyTorch's
documentation shows."""

import torch

OLD = {"dynamo": False, "dynamic_axes": {"pixels": {0: "n"}}, "opset_version": 17}
NEW = {"dynamo": True, "dynamic_shapes": ({0: torch.export.Dim.AUTO},), "external_data": False}
