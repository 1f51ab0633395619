"""gonogo: run training experiments in phases, watch every rank, and write down a verdict.

The installed package is the shared core only: the words (`gonogo.contract`), the judgement
(`gonogo.judge`), the supervision of one run (`gonogo.supervise`), the library of trainers
(`gonogo.trainer`) and the command line (`gonogo.cli`). The applications `service`, `worker` and
`nsa` run from a checkout or an image.
"""

__version__ = "0.9.0"
