"""A stand-in for NCCL on two GPUs, for tests on machines without one.

    test's process      network.py: the modelled network of joinlab.backend, one thread
        ▲ a socket per rank
    rank                nccl.py: what a program meets above ProcessGroupNCCL, and the names of
                        torch.cuda that the recorder uses; tensors lie in host memory

It shows that the recorder, the launcher and the proofs cope with NCCL's interface. It does not show
what NCCL does: that is joinlab's own model, which lies below.
"""
