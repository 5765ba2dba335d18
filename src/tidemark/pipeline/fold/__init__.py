"""Changes into versions: every row's interval written down, so that reads are plain scans."""
