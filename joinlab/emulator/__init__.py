"""The emulator: real DDP code on a modelled NCCL or gloo, without a GPU, in milliseconds."""
