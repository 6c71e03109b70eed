"""The tools of the examples: two forecasts run at the same time, a booking needs an approval, no such city fails."""

from toolyard import App, ToolError

app = App("desk")


@app.tool(read_only=True)
def forecast(city: str) -> str:
    """Tells tomorrow's weather in a city."""
    if city == "Atlantis":
        raise ToolError("there is no city Atlantis")
    return f"{city}: sunny"


@app.tool(needs_approval=True)
def book(city: str) -> str:
    """Books a flight to a city."""
    return f"a seat to {city} is booked"
