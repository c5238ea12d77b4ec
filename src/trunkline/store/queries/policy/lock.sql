-- For whoever reads a layer and writes it back: a row lock would not do, the layer may not exist yet. Readers pass.
LOCK TABLE policies IN SHARE ROW EXCLUSIVE MODE
