"""What a metric says, by prometheus_client's public interface."""

from prometheus_client.metrics import MetricWrapperBase


def value(metric: MetricWrapperBase) -> float:
    """Of a counter or gauge without labels, or of one child of it."""
    (family,) = metric.collect()
    (sample,) = (one for one in family.samples if not one.name.endswith("_created"))
    return sample.value
