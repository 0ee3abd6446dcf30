"""Lists torchvision's classification weights as presets. A preset has the preprocessing with which
torchvision evaluates the weights."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from kernels.problems.interpolation import Interpolation
from models.preprocessing import PRESETS, Preset

# The length of the shorter side, the side of the crop, the filter, the weights, and the models that
# have them. A line that begins with a space continues the list of models of the line before.
_TABLE = """
230 224 bilinear IMAGENET1K_V1 convnext_small
232 224 bilinear IMAGENET1K_V1 convnext_base convnext_large mnasnet0_75 mnasnet1_3
  resnext101_64x4d shufflenet_v2_x1_5 shufflenet_v2_x2_0
232 224 bilinear IMAGENET1K_V2 mobilenet_v2 mobilenet_v3_large regnet_x_16gf regnet_x_1_6gf
  regnet_x_32gf regnet_x_3_2gf regnet_x_400mf regnet_x_800mf regnet_x_8gf regnet_y_16gf
  regnet_y_1_6gf regnet_y_32gf regnet_y_3_2gf regnet_y_400mf regnet_y_800mf regnet_y_8gf
  resnet101 resnet152 resnet50 resnext101_32x8d resnext50_32x4d wide_resnet101_2
  wide_resnet50_2
236 224 bilinear IMAGENET1K_V1 convnext_tiny
242 224 bilinear IMAGENET1K_V1 vit_l_16
256 224 bilinear IMAGENET1K_V1 alexnet densenet121 densenet161 densenet169 densenet201
  googlenet mnasnet0_5 mnasnet1_0 mobilenet_v2 mobilenet_v3_large mobilenet_v3_small
  regnet_x_16gf regnet_x_1_6gf regnet_x_32gf regnet_x_3_2gf regnet_x_400mf regnet_x_800mf
  regnet_x_8gf regnet_y_16gf regnet_y_1_6gf regnet_y_32gf regnet_y_3_2gf regnet_y_400mf
  regnet_y_800mf regnet_y_8gf resnet101 resnet152 resnet18 resnet34 resnet50
  resnext101_32x8d resnext50_32x4d shufflenet_v2_x0_5 shufflenet_v2_x1_0 squeezenet1_0
  squeezenet1_1 vgg11 vgg11_bn vgg13 vgg13_bn vgg16 vgg16_bn vgg19 vgg19_bn vit_b_16
  vit_b_32 vit_l_32 wide_resnet101_2 wide_resnet50_2
255 240 bilinear IMAGENET1K_V2 efficientnet_b1
342 299 bilinear IMAGENET1K_V1 inception_v3
384 384 bilinear IMAGENET1K_V1 efficientnet_v2_s
480 480 bilinear IMAGENET1K_V1 efficientnet_v2_m
224 224 bicubic IMAGENET1K_SWAG_LINEAR_V1 regnet_y_128gf regnet_y_16gf regnet_y_32gf
  vit_b_16 vit_h_14 vit_l_16
224 224 bicubic IMAGENET1K_V1 maxvit_t
232 224 bicubic IMAGENET1K_V1 swin_t
238 224 bicubic IMAGENET1K_V1 swin_b
246 224 bicubic IMAGENET1K_V1 swin_s
256 224 bicubic IMAGENET1K_V1 efficientnet_b0
256 240 bicubic IMAGENET1K_V1 efficientnet_b1
260 256 bicubic IMAGENET1K_V1 swin_v2_s swin_v2_t
272 256 bicubic IMAGENET1K_V1 swin_v2_b
288 288 bicubic IMAGENET1K_V1 efficientnet_b2
320 300 bicubic IMAGENET1K_V1 efficientnet_b3
384 380 bicubic IMAGENET1K_V1 efficientnet_b4
384 384 bicubic IMAGENET1K_SWAG_E2E_V1 regnet_y_128gf regnet_y_16gf regnet_y_32gf vit_b_16
456 456 bicubic IMAGENET1K_V1 efficientnet_b5
512 512 bicubic IMAGENET1K_SWAG_E2E_V1 vit_l_16
518 518 bicubic IMAGENET1K_SWAG_E2E_V1 vit_h_14
528 528 bicubic IMAGENET1K_V1 efficientnet_b6
600 600 bicubic IMAGENET1K_V1 efficientnet_b7
232 224 bilinear IMAGENET1K_FBGEMM_V1 quantized_resnext101_64x4d quantized_shufflenet_v2_x1_5
  quantized_shufflenet_v2_x2_0
232 224 bilinear IMAGENET1K_FBGEMM_V2 quantized_resnet50 quantized_resnext101_32x8d
256 224 bilinear IMAGENET1K_FBGEMM_V1 quantized_googlenet quantized_resnet18 quantized_resnet50
  quantized_resnext101_32x8d quantized_shufflenet_v2_x0_5 quantized_shufflenet_v2_x1_0
256 224 bilinear IMAGENET1K_QNNPACK_V1 quantized_mobilenet_v2 quantized_mobilenet_v3_large
342 299 bilinear IMAGENET1K_FBGEMM_V1 quantized_inception_v3
"""


def _presets() -> Iterator[tuple[str, Preset]]:
    imagenet = PRESETS["imagenet"]
    for line in _TABLE.strip().replace("\n ", " ").splitlines():
        resize, size, kind, weights, *names = line.split()
        preset = replace(
            imagenet, size=int(size), resize=int(resize), interpolation=Interpolation(kind)
        )
        yield from ((f"{name}.{weights}", preset) for name in names)
    halves = (0.5, 0.5, 0.5)  # only these weights have another normalisation
    large = replace(imagenet, size=480, resize=480, interpolation=Interpolation.BICUBIC)
    yield "efficientnet_v2_l.IMAGENET1K_V1", replace(large, mean=halves, std=halves)


TORCHVISION: Mapping[str, Preset] = dict(_presets())
"""The presets by the names of model and weights, such as `resnet50.IMAGENET1K_V2`."""
