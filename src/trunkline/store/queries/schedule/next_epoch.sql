-- A number that no rebuild has had before.
SELECT nextval('bus_epochs')
