"""T3's tracker and DMA engine."""
