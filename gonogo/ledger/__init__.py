"""How is a judgement recorded so that anyone can check it? Seals, chain, signatures, replay."""
