"""What is a person told about an experiment? The same words on every page, command and alert.

`decided` reads what the decisions come to, `causes` why a run failed, `awaited` what is asked of
whom, `next_steps` what can be typed now, `alert_text` the sentence of an alert.
"""
