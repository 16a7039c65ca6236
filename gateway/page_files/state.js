// What the page shows: the one object that its parts share.

export const state = {
  generation: null, // the one whose tokens and numbers are shown; null before the first
  running: null, // the one that is being written, if any
  answering: null, // the message of a chat that it writes, if any
  status: null, // the gateway's last answer to `status`; null while it cannot be reached
  standsIn: false, // whether the model has no chat template of its own, so that ChatML stands in
};
