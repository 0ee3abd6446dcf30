"""Defines the options with which the scripts call PyTorch's two exporters. The options make the
batch size dynamic."""

import torch

OLD = {"dynamo": False, "dynamic_axes": {"pixels": {0: "n"}}, "opset_version": 17}
NEW = {"dynamo": True, "dynamic_shapes": ({0: torch.export.Dim.AUTO},), "external_data": False}
