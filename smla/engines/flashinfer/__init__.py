"""The engine that plans and runs FlashInfer's SM90 MLA kernel natively, without its wrapper."""
