"""Small column chunks become large ones, page by page: what need not be decoded is copied.

For each column of each new row group one of five strategies is chosen, by the bytes that are there, and reported with
its reason: `raw` (pages are copied), `identity` (a dictionary of unique values is those values), `dictionary`
(dictionaries are unified), `plain` (a dictionary that is not worth it is dissolved), `anew` (decoded and encoded by
Arrow).
"""
