"""Names the server that a load test measures: the model, its device and the machine."""

from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families


@dataclass(frozen=True)
class Subject:
    """Names a model, its device and its machine. A field is empty if the server does not report
    it."""

    model: str = ""
    device: str = ""
    machine: str = ""

    def __str__(self) -> str:
        return ", ".join(part for part in (self.model, self.device, self.machine) if part)


def subject(model: str, exposition: str | None) -> Subject:
    """Return the model, device and machine that the text of /metrics (`exposition`) names."""
    device, machine = "", ""
    try:
        for family in text_string_to_metric_families(exposition or ""):
            for sample in family.samples:
                labels = sample.labels
                if sample.name == "convoy_engine_info" and labels["model"] == model:
                    device = labels["device"]
                elif sample.name == "convoy_info":
                    machine = f"{labels['cpu']}, {labels['cores']} cores"
    except (ValueError, KeyError):  # not Convoy's metrics
        return Subject(model)
    return Subject(model, device, machine)
