"""The page's figures and its HTML."""
