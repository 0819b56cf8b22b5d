"""Measurements of shardserve, side by side with what it is compared to, in one run on one machine."""
