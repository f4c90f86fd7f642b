"""From one environment to parquet files and back. No torch here."""
