"""Reports running pipelines to monitoring: metrics and health over HTTP, and notifications to systemd."""
