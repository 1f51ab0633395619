"""Does the process of this container answer? `python docker/health.py URL` exits 0 or 1.

The images carry no curl, and one small file keeps the health checks free of quoting.
"""

import sys
import urllib.error
import urllib.request


def answers(url: str) -> bool:
    """Whether `url` answers with a 2xx status within three seconds."""
    try:
        with urllib.request.urlopen(url, timeout=3) as answer:
            return bool(200 <= answer.status < 300)
    except (urllib.error.URLError, TimeoutError, ConnectionError):
        return False


if __name__ == "__main__":
    sys.exit(0 if answers(sys.argv[1]) else 1)
