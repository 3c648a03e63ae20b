/* weft/weft.h: the whole plugin ABI. Plugins usually include only what they need: note.h, host.h and their interface. */
#ifndef WEFT_WEFT_H
#define WEFT_WEFT_H

#include "base.h"
#include "collective.h"
#include "host.h"
#include "kernels.h"
#include "model.h"
#include "note.h"
#include "plugin.h"
#include "scheduler.h"
#include "speculator.h"
#include "storage.h"
#include "tensor.h"
#include "threads.h"

#endif
