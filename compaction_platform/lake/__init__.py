"""The ground floor: what every verb stands on."""
