-- This process stops on purpose.
DELETE FROM processes WHERE id = $1
