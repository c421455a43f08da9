"""The documentation's site: the documents as they are, and a reference made from the code."""
