"""What does a workload ask of its configuration? The schemas that workloads export, and their use.

`nsa.train.json` is a copy of what `python -m nsa.describe --schema` prints, since gonogo imports no
workload; a test holds them equal.
"""
