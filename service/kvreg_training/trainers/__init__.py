"""The two stages of training: trunk and MTP head."""
