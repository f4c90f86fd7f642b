"""Every word and every column of the suite, once, with unit and meaning.

Standard library only: the recorder turns these dataclasses into parquet schemas, the
analysis reads them back, and neither needs torch.
"""

from bench.schema.tables import (
    SCHEMA_VERSION,
    TABLES,
    Device,
    Estimate,
    Launch,
    MatrixProduct,
    Run,
    Sample,
    TimelineRow,
)
from bench.schema.words import (
    DEFAULT_SIZES,
    MAX_BATCH,
    PARITY_LIMIT,
    STATUSES,
    UNTIMED,
    Case,
    DeviceTrace,
    DeviceType,
    Metric,
    Moment,
    NameValue,
    Outcome,
    ParityTrace,
    Purpose,
    Status,
    Trace,
    column,
)

__all__ = [
    "DEFAULT_SIZES",
    "MAX_BATCH",
    "PARITY_LIMIT",
    "SCHEMA_VERSION",
    "STATUSES",
    "TABLES",
    "UNTIMED",
    "Case",
    "Device",
    "DeviceTrace",
    "DeviceType",
    "Estimate",
    "Launch",
    "MatrixProduct",
    "Metric",
    "Moment",
    "NameValue",
    "Outcome",
    "ParityTrace",
    "Purpose",
    "Run",
    "Sample",
    "Status",
    "TimelineRow",
    "Trace",
    "column",
]
