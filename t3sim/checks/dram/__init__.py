"""An independent check of what the DRAM was told to do: typed from the standards, not from the model."""
