"""Exports networks of timm. Next to each model it writes the config.json that timm saves when it
uploads a model to a hub."""

import timm
from networks import export
from recorded import asked, attempt
from timm.models import _hub

NETWORKS = (
    "mobilenetv3_small_050",
    "mobilenetv4_conv_small_035",
    "efficientnet_b0",
    "tf_efficientnet_lite0",
    "resnet18",
    "resnetv2_50d_gn",
    "regnety_002",
    "ghostnetv2_100",
    "inception_v3",
    "convnextv2_atto",
    "repvit_m0_9",
    "edgenext_xx_small",
    "mobilevit_xxs",
    "vit_tiny_patch16_224",
)


def main() -> None:
    """Export each network, alternating between PyTorch's older and newer exporter."""
    folder, photographs = asked()
    for number, name in enumerate(NETWORKS):

        def work(number: int = number, name: str = name) -> None:
            network = timm.create_model(name, pretrained=False, num_classes=20)
            network.pretrained_cfg["label_names"] = [f"thing {i}" for i in range(20)]
            transforms = timm.data.create_transform(
                **timm.data.resolve_data_config(network.pretrained_cfg, model=network)
            )
            export(
                folder,
                photographs,
                f"timm-{name}",
                network,
                transforms,
                number=number,
                beside=lambda at: _hub.save_config_for_hf(network, str(at / "config.json")),
            )

        attempt(f"timm-{name}", work)


if __name__ == "__main__":
    main()
