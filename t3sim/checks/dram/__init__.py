"""An independent check of the DRAM commands: written from the standards, not from the model."""
