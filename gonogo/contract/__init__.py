"""The words that every part of gonogo shares; imports nothing of ours.

What crosses a process boundary is a pydantic model of this package: a plan comes in (`plan`), an
order goes out (`order`), ranks write heartbeats (`heartbeat`), the watcher writes ticks (`tick`)
and findings (`finding`), processes leave records (`records`), judgement is a decision
(`decision`), the agent protocol is `agent`, the REST resources are `api`. `lifecycle` holds the
only tables of allowed transitions, `outcome` the only table of causes, `canonical` the only
encoder whose bytes are digested.
"""
