"""The platform's own job types. `catalogue` names them all and says who runs them."""
