"""Fold: merge changes into versions. The interval of every row version is stored, so that reads are plain scans."""
