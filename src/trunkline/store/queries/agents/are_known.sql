-- Has any agent ever been heard, and not been removed since?
SELECT EXISTS (SELECT FROM pods)
