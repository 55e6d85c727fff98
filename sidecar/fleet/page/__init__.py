"""The page: what an on-call person sees of the fleet. Rendered here, without a build step and without foreign parts."""
