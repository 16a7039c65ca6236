// What the page shows: the one object that its parts share.

export const state = {
  generation: null, // the one whose tokens and numbers are shown; null before the first
  running: false, // whether it is being written
  status: null, // the gateway's last answer to `status`; null while it cannot be reached
};
