"""The process whose children the observed programs are."""

from tests.observer.observed import parent as parent
