"""Traps of the bridge, each a trainer as small as shows it: with ``--remedy no`` it is caught, with ``yes`` it is not.

By hand, in an environment made of ``envs/xla.txt``::

    PJRT_DEVICE=CPU python -m takeback.backends.xla.traps --trap hidden_sync --remedy no --checkpoints /tmp/ck

Adding one is adding one file here, with ``train(run, manager, remedy, steps)``, and lines in
``experiments/xla_traps.yaml``. All were measured with torch_xla 2.9.0 on PJRT's CPU device; none of them ran on a TPU.
"""

EVERY = 4  # steps between two checkpoints
