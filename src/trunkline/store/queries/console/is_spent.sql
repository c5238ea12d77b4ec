-- Was it used, or signed out?
SELECT EXISTS (SELECT FROM console_spent WHERE id = $1)
