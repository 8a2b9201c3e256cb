mod drains;
mod taints;
