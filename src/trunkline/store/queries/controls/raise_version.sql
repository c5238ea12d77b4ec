-- Said before a change, in its transaction: changes queue up here, so numbers become visible in their order.
UPDATE control_versions SET controls = controls + 1
