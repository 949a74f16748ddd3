"""OpenAI's Conversations API on a catalog, to mount in a Starlette or FastAPI application.

```python
from agents_session_metadata.http import sessions_app

app.mount("/v1", sessions_app(catalog, scope=lambda request: {"owner_id": request.state.user_id}))
```
"""

from .app import AllowDecisions, GetScope, sessions_app

__all__ = ["AllowDecisions", "GetScope", "sessions_app"]
