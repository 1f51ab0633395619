"""Which of several variants is better? Pure: the same units give the same comparison anywhere.

`question` is what is asked, `unit` what one run contributes, `paths` what differs, `interval` how
sure a ratio is, `compare` the answers, `campaign` the next run of a campaign.
"""
