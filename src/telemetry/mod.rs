//! What others see of us.
