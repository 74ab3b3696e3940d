import Redlock from 'redlock'
import { CLIENTS } from '../lib/clients.mjs'
import { openRedlock } from '../lib/redlock-like.mjs'

export const open = async (url, settings) => openRedlock(Redlock, await CLIENTS.ioredis(url, settings.client), settings)
