"""The dashboard's card that leads a new operator to a first answer, to hosts and to people."""
